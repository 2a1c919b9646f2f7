"""What the programs of this folder's parent share; none of these modules is a program."""
