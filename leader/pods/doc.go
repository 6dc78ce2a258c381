// Package pods owns the questions every controller asks of a pod: is it active, ready, available, and which of several
// should go first. All functions are pure.
package pods
