"""What do the kernels cost alone, against their floors and against what they replace?"""
