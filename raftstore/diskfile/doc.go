// Package diskfile writes the store's files: as a whole or not at all, synced, and large ones at a pace that leaves the disk
// to the log; and it names what goes wrong with them.
package diskfile
