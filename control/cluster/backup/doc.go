// Package backup saves snapshots of the cluster into a directory on a schedule, lists them and removes old ones.
//
// Only the server that leads saves (Run). A file gets its name after it was written, synced and read back, so each file with
// such a name is whole. The content is the caller's: an Archiver writes and verifies it (package archive has the format).
package backup
