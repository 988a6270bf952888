"""What `compare` is made of: the words of a task, of its calls and of training rows; MinHash; joins
of many with many. Pure.
"""
