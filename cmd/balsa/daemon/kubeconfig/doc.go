// Package kubeconfig is the administrator's kubeconfig on a server: the servers' contexts in it, how the file is replaced, and
// which context commands use, that of the first server that answers.
package kubeconfig
