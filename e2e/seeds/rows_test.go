package seeds

import "slices"

// rows are everything that the documents print, in their order.
var rows = slices.Concat(document0, document1, document2, document3, document4)
