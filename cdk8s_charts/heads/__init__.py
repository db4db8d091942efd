"""A program of a pod: Medusa's heads as NxD Inference reads them."""
