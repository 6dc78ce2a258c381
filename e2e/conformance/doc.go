// Command conformance runs upstream's own end-to-end cases (e2e.test, by its runner ginkgo) against a cluster of
// several hosts that it starts: a server that takes pods, and agents. Each host is a machine of package lan with a
// network, processes, mounts and a host name of its own, and the directories of an installed node. Its containers are
// real. It lists the cases that did not pass.
//
// Upstream's programs and the images of the cases have to be given as directories. Cases are chosen by their full
// names, one a line of a file, or by a regular expression. balsa-local.yaml tells upstream's storage cases about Balsa's
// own driver, so that they run on its volumes. The folder hostpathplugin has the program of an image that cannot be built
// from the module proxy (registry.k8s.io/sig-storage/hostpathplugin:v1.17.1, on a base with a shell), as far as the cases
// of Dynamic Resource Allocation need it.
package main
