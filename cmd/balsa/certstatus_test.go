package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
)

func TestCertificatesAreShownAndFaultsFail(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Open(pki.Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	list, err := pki.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printCertificates(&out, list, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CN=kubernetes-admin,O=system:masters", "balsa-ca", "(a key)", "valid"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if err := printCertificates(&out, list, time.Now().Add(400*24*time.Hour)); err == nil || !strings.Contains(err.Error(), "admin.pem: expired") {
		t.Errorf("expired: %v", err)
	}
}
