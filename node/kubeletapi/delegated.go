package kubeletapi

import (
	"context"
	"crypto/x509"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	webhooktoken "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
)

// How long answers of the API server are believed, and how long it is waited for; the kubelet's defaults.
const (
	tokenTTL      = 2 * time.Minute
	allowTTL      = 5 * time.Minute
	denyTTL       = 30 * time.Second
	reviewTimeout = 10 * time.Second
)

func reviewBackoff() wait.Backoff {
	return wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

// NewAuthenticator authenticates clients by certificates that one of the CAs signed, and by bearer tokens that the API
// server's TokenReview accepts. cas is called at each request. Anonymous requests are refused.
func NewAuthenticator(client kubernetes.Interface, cas func() *x509.CertPool) (authenticator.Request, error) {
	verify := func() (x509.VerifyOptions, bool) {
		options := x509request.DefaultVerifyOptions()
		options.Roots = cas()
		return options, true
	}
	reviews, err := webhooktoken.NewFromInterface(client.AuthenticationV1(), nil, reviewBackoff(), reviewTimeout, webhooktoken.AuthenticatorMetrics{
		RecordRequestTotal:   func(context.Context, string) {},
		RecordRequestLatency: func(context.Context, string, float64) {},
	})
	if err != nil {
		return nil, err
	}
	return group.NewAuthenticatedGroupAdder(union.New(
		x509request.NewDynamic(verify, x509request.CommonNameUserConversion),
		bearertoken.New(cache.New(reviews, false, tokenTTL, tokenTTL)),
	)), nil
}

// NewAuthorizer asks the API server's SubjectAccessReview, and keeps its answers for a short while.
func NewAuthorizer(client kubernetes.Interface) (authorizer.Authorizer, error) {
	backoff := reviewBackoff()
	return authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(),
		AllowCacheTTL:             allowTTL,
		DenyCacheTTL:              denyTTL,
		WebhookRetryBackoff:       &backoff,
	}.New()
}
