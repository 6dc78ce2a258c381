// Package nodelogs serves the logs of the machine below /logs/ of the kubelet's API: the files of the log directory, and,
// where that is enabled, services' logs from journald or from their files, by ?query= (KEP-2258).
//
// Only regular files and directories inside the log directory are shown. A link that leads out of it, or that is
// absolute, is not followed: pods may write into that directory, and the agent reads as root.
package nodelogs
