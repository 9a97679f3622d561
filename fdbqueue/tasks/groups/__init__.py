"""Groups of tasks: their handles, their looks, and the sweeps that let them end."""
