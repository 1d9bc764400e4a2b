"""The sections of the analysis: each takes what was read and gives its figures, its tables and what to know of them."""

from metaagent_x.analysis.sections.base import Plot, Section
from metaagent_x.analysis.sections.choices import structure
from metaagent_x.analysis.sections.costs import costs
from metaagent_x.analysis.sections.credit import credit
from metaagent_x.analysis.sections.gains import attribution
from metaagent_x.analysis.sections.learning import curves
from metaagent_x.analysis.sections.overview import accuracy, read
from metaagent_x.analysis.sections.variants import ablations

SECTIONS = (read, accuracy, structure, curves, attribution, ablations, credit, costs)

__all__ = ["SECTIONS", "Plot", "Section"]
