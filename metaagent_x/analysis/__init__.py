"""Figures and tables from run folders. Reads files only; nothing here plays a task or touches a model."""
