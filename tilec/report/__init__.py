"""The report: a page of HTML in one file that shows a program, its kernels and the reasons of its plan."""
