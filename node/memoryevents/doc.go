// Package memoryevents tells at once when memory gets short, so that it need not be measured often.
//
// With version 1 of control groups the kernel signals an eventfd when a group's usage passes an amount; the caller sets
// that amount again as the part of the usage that is easily given back changes. With version 2 it signals a trigger of
// pressure stall information (PSI): tasks of the group waited for memory for 300 ms of 2 s. Where the kernel has
// neither, New returns an error and the caller looks by the clock.
package memoryevents
