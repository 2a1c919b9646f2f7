"""Does one model descend from another?"""
