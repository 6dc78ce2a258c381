// Package pluginwatcher registers the plug-ins whose sockets appear in a directory, as upstream's kubelet does: it asks each socket for
// whom it stands (PluginInfo) and hands that to the Handler of its type.
//
// Goroutines: Run holds one, which asks one socket after the other; a registration has a deadline. What a Handler does is its own.
package pluginwatcher
