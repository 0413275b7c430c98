"""The experiments of five papers, run again on Sash's algorithms; see `README.md` beside this file."""
