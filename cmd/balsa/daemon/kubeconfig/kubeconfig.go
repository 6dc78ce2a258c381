package kubeconfig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The administrator's kubeconfig has one user, a context "balsa" for the server on this
// machine, and a context "balsa-NAME" for each server of the cluster.
const (
	contextName = "balsa"
	userName    = "balsa-admin"
)

// Server is a server of the cluster; Name is its node's name.
type Server struct {
	Name string
	URL  string // https://host:port
}

// Encode returns the text of the kubeconfig. here is the URL of the context "balsa"; ca,
// cert and key are PEM.
func Encode(here string, all []Server, ca, cert, key []byte) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.AuthInfos[userName] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	add := func(name, url string) {
		c.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
		c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: userName}
	}
	add(contextName, here)
	for _, s := range all {
		add(contextName+"-"+s.Name, s.URL)
	}
	c.CurrentContext = contextName
	return clientcmd.Write(*c)
}

// Write replaces the file at path atomically, with mode 0600, unless it has this text
// already.
func Write(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	defer os.Remove(file.Name()) // fails after the rename
	_, err = file.Write(data)
	if err2 := file.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
