"""The algebra of subscripts: integer terms over indices and sizes, what is known of them, and questions about them."""

from tilec.index import facts as facts  # `//` and `%` of terms are defined there, by proofs
