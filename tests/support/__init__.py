"""Code that several tests share; it imports nothing of the product unless its docstring says so."""
