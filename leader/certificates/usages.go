package certificates

import (
	"crypto/x509"
	"fmt"
	"slices"

	capi "k8s.io/api/certificates/v1"
)

// The API's names of the usages of a key, RFC 5280 sections 4.2.1.3 and 4.2.1.12.
var (
	usages = map[capi.KeyUsage]x509.KeyUsage{
		capi.UsageSigning:           x509.KeyUsageDigitalSignature,
		capi.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
		capi.UsageContentCommitment: x509.KeyUsageContentCommitment,
		capi.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
		capi.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
		capi.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
		capi.UsageCertSign:          x509.KeyUsageCertSign,
		capi.UsageCRLSign:           x509.KeyUsageCRLSign,
		capi.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
		capi.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
	}
	extendedUsages = map[capi.KeyUsage]x509.ExtKeyUsage{
		capi.UsageAny:             x509.ExtKeyUsageAny,
		capi.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
		capi.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
		capi.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
		capi.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
		capi.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
		capi.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
		capi.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
		capi.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
		capi.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
		capi.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
		capi.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		capi.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
)

// keyUsages translates what a request asks for; each extended usage once, in the order of their numbers.
func keyUsages(asked []capi.KeyUsage) (usage x509.KeyUsage, extended []x509.ExtKeyUsage, err error) {
	for _, name := range asked {
		if u, ok := usages[name]; ok {
			usage |= u
		} else if u, ok := extendedUsages[name]; ok {
			extended = append(extended, u)
		} else {
			return 0, nil, fmt.Errorf("unrecognized usage values: %q", name)
		}
	}
	slices.Sort(extended)
	return usage, slices.Compact(extended), nil
}
