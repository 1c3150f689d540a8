"""`make bench`: what a figure means here is said in docs/performance.md, which this writes."""
