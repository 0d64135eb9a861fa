"""The words after `volcache`: what each takes, prints and returns."""
