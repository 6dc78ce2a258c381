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
	f.StringSliceVar(&z.Modes, "authorization-mode", z.Modes, "authorizers, asked in the given order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny (default Node,RBAC)")
	f.StringVar(&z.ConfigFile, "authorization-config", z.ConfigFile, "file with an AuthorizationConfiguration, instead of --authorization-mode; read again when it changes")
	f.StringVar(&z.PolicyFile, "authorization-policy-file", z.PolicyFile, "file with the policies of mode ABAC, one JSON object per line")
	f.StringVar(&z.WebhookFile, "authorization-webhook-config-file", z.WebhookFile, "kubeconfig of the webhook that answers SubjectAccessReviews, for mode Webhook")
	f.StringVar(&z.WebhookVersion, "authorization-webhook-version", z.WebhookVersion, "version of the SubjectAccessReviews that are sent: v1 or v1beta1")
	f.DurationVar(&z.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", z.AuthorizedTTL, "how long an \"allowed\" of the webhook is cached")
	f.DurationVar(&z.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", z.UnauthorizedTTL, "how long a \"denied\" of the webhook is cached")
	f.StringVar(&c.Encryption.File, "encryption-provider-config", c.Encryption.File, "file with an EncryptionConfiguration, which says how objects are encrypted at rest; the same on all servers (default: Secrets are encrypted with a key that a new cluster makes; see balsa secrets)")
	f.BoolVar(&c.Encryption.Reload, "encryption-provider-config-automatic-reload", c.Encryption.Reload, "read --encryption-provider-config again when it changes")
	f.StringSliceVar(&c.Admission.Enable, "enable-admission-plugins", c.Admission.Enable, "admission plugins to enable beside those that are on by default: "+strings.Join(admission.Optional(), ", "))
	f.StringSliceVar(&c.Admission.Disable, "disable-admission-plugins", c.Admission.Disable, "admission plugins to disable that are on by default")
	f.StringVar(&c.Admission.ConfigFile, "admission-control-config-file", c.Admission.ConfigFile, "file with an AdmissionConfiguration, such as the defaults of PodSecurity for namespaces without labels and the limits of EventRateLimit; read at the start")
	c.Audit.AddFlags(f)
	f.Lookup("audit-log-path").Usage = "file of the audit log, - for standard output, none for no audit log (default: server/logs/audit.log in the data directory, unless there is a webhook)"
	f.Lookup("audit-policy-file").Usage = "file with the audit policy (default: the metadata of writes and of reads of Secrets; bodies only of changes to RBAC)"
	f.IntVar(&c.MaxReads, "max-requests-inflight", c.MaxReads, "with --max-mutating-requests-inflight, how many requests are handled at once; API priority and fairness divides them among clients")
	f.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", c.MaxWrites, "see --max-requests-inflight")
	f.IntVar(&c.MaxStreams, "max-watches-per-client", c.MaxStreams, "how many watches and streams one user may have open from one address")
	f.DurationVar(&c.RequestTimeout, "request-timeout", c.RequestTimeout, "longest duration of a request, except watches and streams")
	f.BoolVar(&c.PodPresets, "enable-pod-presets", c.PodPresets, "serve PodPresets (settings.k8s.io/v1alpha1, which Kubernetes had until v1.19) and merge them into new pods; the same on all servers")
	f.BoolVar(&c.LegacyTokens, "legacy-service-account-tokens", c.LegacyTokens, "make a Secret with a token that does not expire for every ServiceAccount, as Kubernetes did until v1.23, for programs that look for it; pods and kubectl create token do not need it. The same on all servers")
	f.BoolVar(&c.LegacyAPIs, "legacy-apis", c.LegacyAPIs, "accept manifests of API versions that Kubernetes has removed, such as extensions/v1beta1 Deployments and Ingresses, batch/v1beta1 CronJobs and apiextensions.k8s.io/v1beta1 CustomResourceDefinitions, with a warning; they are stored as today's versions. The same on all servers")
	f.BoolVar(&c.Initializers, "enable-initializers", c.Initializers, "serve InitializerConfigurations (admissionregistration.k8s.io/v1alpha1, which Kubernetes had until v1.13): initializers complete new objects before other clients see them; the same on all servers")
}

func bindAuthentication(f *pflag.FlagSet, a *authn.Settings) {
	f.StringVar(&a.ConfigFile, "authentication-config", a.ConfigFile, "file with an AuthenticationConfiguration: issuers of tokens, anonymous requests; read again when it changes")
	f.StringVar(&a.TokenFile, "token-auth-file", a.TokenFile, `CSV of bearer tokens: token,user,uid,"group,group"`)
	f.StringVar(&a.PasswordFile, "basic-auth-file", a.PasswordFile, `CSV of passwords: password,user,uid,"group,group"; prefer tokens or certificates`)
	f.StringVar(&a.Anonymous, "anonymous-auth", a.Anonymous, "whether requests without credentials are served as user system:anonymous: true, false (default: only for health and discovery documents)")
	f.Lookup("anonymous-auth").NoOptDefVal = "true"
	f.StringSliceVar(&a.Audiences, "api-audiences", a.Audiences, "audiences of tokens for this API (default: the issuer of service-account tokens)")
	f.StringVar(&a.WebhookFile, "authentication-token-webhook-config-file", a.WebhookFile, "kubeconfig of the webhook that answers TokenReviews, for bearer tokens that the server does not know")
	f.StringVar(&a.WebhookVersion, "authentication-token-webhook-version", a.WebhookVersion, "version of the TokenReviews that are sent: v1 or v1beta1")
	f.DurationVar(&a.WebhookTTL, "authentication-token-webhook-cache-ttl", a.WebhookTTL, "how long an answer of the webhook is cached")
	o := &a.OIDC
	f.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL, "URL of an OpenID Connect issuer whose ID tokens are accepted")
	f.StringVar(&o.ClientID, "oidc-client-id", o.ClientID, "client ID for which the tokens must be issued")
	f.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile, "certificate authorities that the issuer is verified with (default: the host's)")
	f.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim, "claim that is the user's name")
	f.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix, "prefix of users' names; - for none (default: the issuer's URL and #, unless the claim is email)")
	f.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim, "claim that holds the user's groups")
	f.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix, "prefix of groups' names")
	f.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs, "algorithms with which tokens may be signed")
	f.StringToStringVar(&o.RequiredClaims, "oidc-required-claim", o.RequiredClaims, "claims that tokens must have, as key=value")
}

func bindAuthenticatingProxy(f *pflag.FlagSet, p *authn.Proxy) {
	f.StringVar(&p.CAFile, "requestheader-client-ca-file", p.CAFile, "file with the certificate authorities of proxies that authenticate clients themselves")
	f.StringSliceVar(&p.Names, "requestheader-allowed-names", p.Names, "common names of such proxies (default: any name that the authorities signed)")
	f.StringSliceVar(&p.UserHeaders, "requestheader-username-headers", p.UserHeaders, "headers with the user's name (default X-Remote-User)")
	f.StringSliceVar(&p.UIDHeaders, "requestheader-uid-headers", p.UIDHeaders, "headers with the user's UID (default X-Remote-Uid)")
	f.StringSliceVar(&p.GroupHeaders, "requestheader-group-headers", p.GroupHeaders, "headers with the user's groups (default X-Remote-Group)")
	f.StringSliceVar(&p.ExtraPrefixes, "requestheader-extra-headers-prefix", p.ExtraPrefixes, "prefixes of the headers with further attributes of the user (default X-Remote-Extra-)")
}
