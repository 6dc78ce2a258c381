// Package figures owns the form in which measurements are shown: a table with
// one row a figure and, if somebody else was measured too, both side by side;
// and what it takes to measure processes from outside.
package figures
