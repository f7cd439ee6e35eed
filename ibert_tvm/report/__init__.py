"""The report of an artefact: what it is, how exact it is, and where its time and memory go.

The page holds the documents of the other commands and shows their numbers; it computes none. It
needs the extra ``report`` (Jinja2), and onnx for `write_onnx`.
"""

from .graph import program_graph
from .onnx_file import write_onnx
from .page import render_page
