"""Does one network descend from another?"""
