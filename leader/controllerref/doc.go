// Package controllerref owns what a controller needs to keep a set of objects that carry its owner reference: finding them,
// adopting and releasing them by selector, creating pods from a template, and knowing which of its own writes the
// informer has not shown yet.
package controllerref
