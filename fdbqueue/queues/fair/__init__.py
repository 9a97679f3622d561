"""FairQueue: rounds over the keys of plain items."""
