"""glmgym: agentic environments and long-horizon RL for GLM-family models. The public names, nothing heavy."""
