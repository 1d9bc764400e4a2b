"""What is asked, what counts as right, where the questions come from. Light: importing it loads no other library."""
