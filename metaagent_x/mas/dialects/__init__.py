"""Other ways to write a script, mapped onto our language."""
