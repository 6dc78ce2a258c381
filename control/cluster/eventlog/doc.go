// Package eventlog keeps the newest events of the cluster in memory for any number of readers. A reader holds the sequence
// number of the last event it has seen. A reader that is slower than the log is told that events were lost; it never
// delays a writer. Log.mu guards everything; nothing is sent under it.
package eventlog
