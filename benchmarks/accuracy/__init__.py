"""
Predicted against measured: every run of ``benchmarks/measured_runs``, or of any file with its columns.

``python -m benchmarks.accuracy`` prints the figures. Each row is a job and a strategy on the user's own road:
``--jobs`` writes them as job files, ``--check-jobs`` estimates every one of these files anew, as ``planner estimate``
does, and ends with exit code 3 unless all step times and peaks are the benchmark's own to the last digit.
"""
