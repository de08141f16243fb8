"""Recognises GEMMs with a stored weight and states their axes; decides no cut."""
