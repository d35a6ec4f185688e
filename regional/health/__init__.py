"""Who is alive, who does worse than its peers, and who may be tried again: values in, values out."""
