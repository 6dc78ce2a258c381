package pki

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns a kubeconfig for one user of the cluster named "balsa", with everything inline.
func Kubeconfig(server string, ca, cert, key []byte) ([]byte, error) {
	const name, user = "balsa", "balsa-admin"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}

// WriteKubeconfig writes Kubeconfig's text to path, atomically, mode 0600.
func WriteKubeconfig(path, server string, ca []byte, client *Leaf) error {
	data, err := Kubeconfig(server, ca, client.CertPEM(), client.KeyPEM())
	if err != nil {
		return fmt.Errorf("pki: kubeconfig: %w", err)
	}
	if err := writeCopy(path, data); err != nil { // made again at each start
		return fmt.Errorf("pki: kubeconfig: %w", err)
	}
	return nil
}
