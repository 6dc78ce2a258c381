// Package figures owns the form of measurements: a table with one row a figure, with a second system beside the first
// if there is one; and functions that measure processes from outside.
package figures
