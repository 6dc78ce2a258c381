// Package diskfile writes the store's files: as a whole or not at all, synced, and large files at a pace that leaves the disk to the log. It
// also turns errors of the file system into the store's errors.
package diskfile
