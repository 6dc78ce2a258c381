// Package staticpod reads the pods that a node runs from manifests in a directory, whether or not there is an API server.
package staticpod
