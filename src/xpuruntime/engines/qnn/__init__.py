"""The QNN engine for Qualcomm NPUs: ``offline`` prepares context binaries in a process of its own, ``run`` runs them, ``evidence`` reports each op.

``library`` knows the vendor's packages, ``options`` the allowed values, ``probe`` finds the nodes on which the vendor fails.
"""
