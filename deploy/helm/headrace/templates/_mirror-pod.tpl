{{/* The pod template of a worker of mirrors. */}}
{{- define "headrace.mirrorPod" -}}
{{- $root := .root -}}
{{- $mirror := .root.Values.mirror -}}
{{- $isTls := include "headrace.tls" $root -}}
metadata:
  labels:
    {{- include "headrace.podLabels" . | nindent 4 }}
  {{- with $mirror.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "headrace.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $mirror.terminationGracePeriodSeconds }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "headrace.podSecurity" $root | nindent 4 }}
  {{- include "headrace.scheduling" . | nindent 2 }}
  containers:
    - name: mirror
      image: {{ include "headrace.image" (dict "image" $root.Values.image "tag" $root.Chart.AppVersion) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        - mirror
        - run
        {{- range $mirror.names }}
        - {{ . | quote }}
        {{- end }}
        - --worker-id=$(HEADRACE_POD_NAME)
        - {{ printf "--metrics-host=%s" $root.Values.listenHost | quote }}
        - --metrics-port=9464
        - --log-format={{ ternary "json" "text" (eq $root.Values.logs.format "json") }}
        {{- if eq $root.Values.logs.level "debug" }}
        - --verbose
        {{- end }}
        {{- range $mirror.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: HEADRACE_POD_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        - {name: HEADRACE_BOOTSTRAP_SERVERS, value: {{ include "headrace.bootstrap" $root | quote }}}
        - {name: HOME, value: /tmp}
        {{- if $isTls }}
        - {name: HEADRACE_SECURITY_PROTOCOL, value: SSL}
        - {name: HEADRACE_SSL_CAFILE, value: /etc/headrace-ca/ca.crt}
        {{- if $mirror.clientTlsSecretName }}
        - {name: HEADRACE_SSL_CERTFILE, value: /etc/headrace-client-tls/tls.crt}
        - {name: HEADRACE_SSL_KEYFILE, value: /etc/headrace-client-tls/tls.key}
        {{- end }}
        {{- end }}
        {{- if $mirror.apiKeySecretName }}
        - {name: HEADRACE_API_KEY_FILE, value: /etc/headrace-mirror/api-key}
        {{- if not $isTls }}
        - {name: HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS, value: "true"}
        {{- end }}
        {{- end }}
        {{- with $mirror.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: metrics, containerPort: 9464}
      startupProbe:
        httpGet: {path: /health/liveness, port: metrics}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 30
      livenessProbe:
        httpGet: {path: /health/liveness, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /health/readiness, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      resources:
        {{- toYaml $mirror.resources | nindent 8 }}
      securityContext:
        {{- include "headrace.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $isTls }}
        - {name: ca, mountPath: /etc/headrace-ca, readOnly: true}
        {{- if $mirror.clientTlsSecretName }}
        - {name: client-tls, mountPath: /etc/headrace-client-tls, readOnly: true}
        {{- end }}
        {{- end }}
        {{- if $mirror.apiKeySecretName }}
        - {name: api-key, mountPath: /etc/headrace-mirror, readOnly: true}
        {{- end }}
        {{- range $mirror.sources }}
        - {name: source-{{ .name }}, mountPath: /etc/headrace-sources/{{ .name }}, readOnly: true}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- if $isTls }}
    # Not the services' own key: it is for brokers and coordinators.
    - name: ca
      secret:
        secretName: {{ include "headrace.tlsSecret" $root }}
        defaultMode: 0440
        items: [{key: ca.crt, path: ca.crt}]
    {{- with $mirror.clientTlsSecretName }}
    - name: client-tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- end }}
    {{- with $mirror.apiKeySecretName }}
    - name: api-key
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- range $mirror.sources }}
    - name: source-{{ .name }}
      secret: {secretName: {{ .secretName }}, defaultMode: 0440}
    {{- end }}
{{- end -}}
