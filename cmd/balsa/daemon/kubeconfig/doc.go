// Package kubeconfig writes the administrator's kubeconfig of a server, with a context for each server of the cluster, and
// chooses the context that commands use: the first one whose server answers.
package kubeconfig
