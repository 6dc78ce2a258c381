package signing_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	capi "k8s.io/api/certificates/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/cmd/auth"
	kubectlcertificates "k8s.io/kubectl/pkg/cmd/certificates"
	"k8s.io/kubectl/pkg/cmd/get"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/controltest"
)

// kubectl runs a command of kubectl's with a client certificate, and returns what it prints.
func (c *cluster) kubectl(t *testing.T, certPEM, keyPEM []byte, args ...string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + c.Address, CertificateAuthorityData: c.PKI.CA()}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := t.TempDir() + "/kubeconfig"
	must(t, clientcmd.WriteToFile(*config, path))
	flags := genericclioptions.NewConfigFlags(true).WithWarningPrinter(genericiooptions.NewTestIOStreamsDiscard())
	flags.KubeConfig = &path
	factory := cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags))
	streams, _, out, faults := genericiooptions.NewTestIOStreams()
	root := &cobra.Command{Use: "kubectl", SilenceUsage: true}
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(kubectlcertificates.NewCmdCertificate(factory, streams), get.NewCmdGet("kubectl", factory, streams), auth.NewCmdAuth(factory, streams))
	root.SetArgs(args)
	root.SetOut(out)
	cmdutil.BehaviorOnFatal(func(text string, _ int) { t.Errorf("kubectl %s: %s", strings.Join(args, " "), text) })
	defer cmdutil.DefaultBehaviorOnFatal()
	if err := root.Execute(); err != nil {
		t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, faults)
	}
	return out.String()
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func TestKubectlApprovesDeniesAndShows(t *testing.T) {
	c := start(t, pki.IssuerConfig{})
	admin := func(args ...string) string {
		return c.kubectl(t, c.PKI.Admin().CertPEM(), c.PKI.Admin().KeyPEM(), args...)
	}
	key := newKey(t)
	var names []string
	for range 3 {
		data := request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"devs", "ops"}}})
		name, err := ask(t, c.admin, capi.KubeAPIServerClientSignerName, data, key, toAsk)
		must(t, err)
		names = append(names, name)
	}
	if out := admin("certificate", "approve", names[0]); !strings.Contains(out, "certificatesigningrequest.certificates.k8s.io/"+names[0]+" approved") {
		t.Error(out)
	}
	if out := admin("certificate", "deny", names[1]); !strings.Contains(out, names[1]+" denied") {
		t.Error(out)
	}
	signed := c.certificate(t, names[0])
	table := admin("get", "csr")
	if head := strings.Fields(strings.SplitN(table, "\n", 2)[0]); strings.Join(head, " ") != "NAME AGE SIGNERNAME REQUESTOR REQUESTEDDURATION CONDITION" {
		t.Errorf("columns %v", head)
	}
	for i, condition := range []string{"Approved,Issued", "Denied", "Pending"} {
		row := regexp.MustCompile(names[i] + `\s+\S+\s+kubernetes\.io/kube-apiserver-client\s+kubernetes-admin\s+<none>\s+` + condition + `\n`)
		if !row.MatchString(table) {
			t.Errorf("no row of %s, %s:\n%s", names[i], condition, table)
		}
	}
	who := c.kubectl(t, signed, keyPEM(t, key), "auth", "whoami")
	for _, want := range []string{`Username\s+jane\n`, `Groups\s+\[(devs ops|ops devs) system:authenticated\]\n`} {
		if !regexp.MustCompile(want).MatchString(who) {
			t.Errorf("no %s in\n%s", want, who)
		}
	}
	if bytes.Contains([]byte(table), []byte("BEGIN")) {
		t.Error("the table shows a request")
	}
	controltest.Await(t, "the denied one stays without a certificate", func() bool { return len(c.get(t, names[1]).Status.Certificate) == 0 })
}
