"""Do singular values that no disguise changes tell descendants from unrelated networks?"""
