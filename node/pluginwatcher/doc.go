// Package pluginwatcher registers the plug-ins whose sockets appear in a directory, as upstream's kubelet does: it asks
// each socket for its PluginInfo and passes it to the Handler of that type.
//
// Goroutines: Run has one, which handles one socket after another; a registration has a deadline. Handlers manage their own
// goroutines.
package pluginwatcher
