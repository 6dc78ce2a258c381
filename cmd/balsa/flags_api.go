package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/auth/admission"
	"github.com/balsahq/balsa/control/auth/authn"
)

func bindAPI(f *pflag.FlagSet, c *config.API) {
	bindAuthentication(f, &c.Authentication)
	bindAuthenticatingProxy(f, &c.Authentication.Proxy)
	bindCertificates(f, &c.Certificates)
	z := &c.Authorization
	f.StringSliceVar(&z.Modes, "authorization-mode", z.Modes, "who decides what users may do, asked in this order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny (default Node,RBAC)")
	f.StringVar(&z.ConfigFile, "authorization-config", z.ConfigFile, "file with an AuthorizationConfiguration, instead of --authorization-mode; followed when it changes")
	f.StringVar(&z.PolicyFile, "authorization-policy-file", z.PolicyFile, "file with the policies of mode ABAC, one JSON object a line")
	f.StringVar(&z.WebhookFile, "authorization-webhook-config-file", z.WebhookFile, "kubeconfig of who answers SubjectAccessReviews, for mode Webhook")
	f.StringVar(&z.WebhookVersion, "authorization-webhook-version", z.WebhookVersion, "version of the SubjectAccessReviews sent: v1 or v1beta1")
	f.DurationVar(&z.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", z.AuthorizedTTL, "how long the webhook's yes is believed")
	f.DurationVar(&z.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", z.UnauthorizedTTL, "how long the webhook's no is believed")
	f.StringVar(&c.Encryption.File, "encryption-provider-config", c.Encryption.File, "file with an EncryptionConfiguration: with what objects are encrypted at rest; the same on all servers (default: Secrets with a key that a new cluster makes; see balsa secrets)")
	f.BoolVar(&c.Encryption.Reload, "encryption-provider-config-automatic-reload", c.Encryption.Reload, "take that file anew when it changes")
	f.StringSliceVar(&c.Admission.Enable, "enable-admission-plugins", c.Admission.Enable, "admission plugins to ask beside those on by default: "+strings.Join(admission.Optional(), ", "))
	f.StringSliceVar(&c.Admission.Disable, "disable-admission-plugins", c.Admission.Disable, "admission plugins not to ask although they are on by default")
	f.StringVar(&c.Admission.ConfigFile, "admission-control-config-file", c.Admission.ConfigFile, "file with an AdmissionConfiguration: what namespaces without labels are held to (PodSecurity), limits of events (EventRateLimit) and others; read at start")
	c.Audit.AddFlags(f)
	f.Lookup("audit-log-path").Usage = "file that requests are recorded in, - for standard output, none for no record (default: server/logs/audit.log in the data directory, unless there is a webhook)"
	f.Lookup("audit-policy-file").Usage = "file with the audit policy (default: who did what, without what was sent; never what secrets hold)"
	f.IntVar(&c.MaxReads, "max-requests-inflight", c.MaxReads, "with --max-mutating-requests-inflight, how many requests are handled at once; priority and fairness shares them out")
	f.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", c.MaxWrites, "see --max-requests-inflight")
	f.IntVar(&c.MaxStreams, "max-watches-per-client", c.MaxStreams, "how many watches and streams one user may hold from one address")
	f.DurationVar(&c.RequestTimeout, "request-timeout", c.RequestTimeout, "how long a request may take that is no watch and no stream")
	f.BoolVar(&c.PodPresets, "enable-pod-presets", c.PodPresets, "serve PodPresets (settings.k8s.io/v1alpha1, of Kubernetes until v1.19) and merge them into new pods; give it to all servers")
	f.BoolVar(&c.Initializers, "enable-initializers", c.Initializers, "serve InitializerConfigurations (admissionregistration.k8s.io/v1alpha1, of Kubernetes until v1.13): programs that finish new objects before others see them; give it to all servers")
}

func bindAuthentication(f *pflag.FlagSet, a *authn.Settings) {
	f.StringVar(&a.ConfigFile, "authentication-config", a.ConfigFile, "file with an AuthenticationConfiguration: issuers of tokens, anonymous requests; followed when it changes")
	f.StringVar(&a.TokenFile, "token-auth-file", a.TokenFile, `CSV of bearer tokens: token,user,uid,"group,group"`)
	f.StringVar(&a.PasswordFile, "basic-auth-file", a.PasswordFile, `CSV of passwords: password,user,uid,"group,group"; prefer tokens or certificates`)
	f.StringVar(&a.Anonymous, "anonymous-auth", a.Anonymous, "whether requests without credentials are somebody: true, false (default: for health and discovery documents only)")
	f.Lookup("anonymous-auth").NoOptDefVal = "true"
	f.StringSliceVar(&a.Audiences, "api-audiences", a.Audiences, "what tokens for this API are made for (default: the issuer of service-account tokens)")
	f.StringVar(&a.WebhookFile, "authentication-token-webhook-config-file", a.WebhookFile, "kubeconfig of who answers TokenReviews about bearer tokens nobody here knows")
	f.StringVar(&a.WebhookVersion, "authentication-token-webhook-version", a.WebhookVersion, "version of the TokenReviews sent: v1 or v1beta1")
	f.DurationVar(&a.WebhookTTL, "authentication-token-webhook-cache-ttl", a.WebhookTTL, "how long the webhook's answers are believed")
	o := &a.OIDC
	f.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL, "URL of an OpenID Connect issuer whose ID tokens are believed")
	f.StringVar(&o.ClientID, "oidc-client-id", o.ClientID, "the client its tokens must be made for")
	f.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile, "certificate authorities of the issuer (default: the host's)")
	f.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim, "claim that is the user's name")
	f.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix, "put before users' names; - for nothing (default: the issuer's URL and #, unless the claim is email)")
	f.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim, "claim that holds the user's groups")
	f.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix, "put before groups' names")
	f.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs, "algorithms that tokens may be signed with")
	f.StringToStringVar(&o.RequiredClaims, "oidc-required-claim", o.RequiredClaims, "claims tokens must have, as key=value")
}

func bindAuthenticatingProxy(f *pflag.FlagSet, p *authn.Proxy) {
	f.StringVar(&p.CAFile, "requestheader-client-ca-file", p.CAFile, "certificate authorities of proxies that authenticate their clients themselves")
	f.StringSliceVar(&p.Names, "requestheader-allowed-names", p.Names, "common names of such proxies (default: any that the authorities signed)")
	f.StringSliceVar(&p.UserHeaders, "requestheader-username-headers", p.UserHeaders, "headers with the user's name (default X-Remote-User)")
	f.StringSliceVar(&p.UIDHeaders, "requestheader-uid-headers", p.UIDHeaders, "headers with the user's UID (default X-Remote-Uid)")
	f.StringSliceVar(&p.GroupHeaders, "requestheader-group-headers", p.GroupHeaders, "headers with the user's groups (default X-Remote-Group)")
	f.StringSliceVar(&p.ExtraPrefixes, "requestheader-extra-headers-prefix", p.ExtraPrefixes, "what headers with more about the user begin with (default X-Remote-Extra-)")
}
