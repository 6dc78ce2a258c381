// Package containerlogs knows the log files of containers: where the runtime writes them, the links by which collectors
// find them, their rotation, and their end, which may be a container's termination message.
package containerlogs
